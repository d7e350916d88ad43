import os

from hypothesis import settings

# The same examples in every run: a change is judged by what it changes. HYPOTHESIS_PROFILE=explore draws others.
# No deadline: how long an example takes says more of the machine than of the code.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
