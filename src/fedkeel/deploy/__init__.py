"""The same method files on a real network, with Flower: `from fedkeel.deploy.flower import client_app, server_app`."""
