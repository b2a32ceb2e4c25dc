"""The same methods on a real network, with Flower. See `client_app` and `server_app` in fedkeel.deploy.flower."""
