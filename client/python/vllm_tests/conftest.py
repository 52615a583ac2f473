from fixtures import daemon, engine  # noqa: F401
