"""What happens to an upload between a client and the server: attacks, compression, privacy and robust means.

A method's server asks for weighted sums of uploads, so all of this stands in one place and holds for every method.
`channel.py` is that place. The other files hold one kind of condition each.
"""
