"""The same algorithm files on a real network, by Flower: `from fedkeel.deploy.flower import client_app, server_app`."""
