from hypothesis import settings

# How long one example takes says more about who else uses the machine than about the code.
settings.register_profile("core", deadline=None)
settings.load_profile("core")
