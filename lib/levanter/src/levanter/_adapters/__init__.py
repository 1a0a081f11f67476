"""The only modules that import optional back-ends; each is loaded by the config that needs it."""
