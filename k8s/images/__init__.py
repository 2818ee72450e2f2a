"""Images of worker, Spark server and manager: built here, from packages and wheels, offline.

Problem: an image is only as trustworthy as what its build may fetch, and a build that fetches
cannot be repeated. Choice: everything is gathered first (base.py: Debian packages by mmdebstrap;
wheels.py: wheels of requirements.lock), then buildah builds in a network namespace without any
interface. What was gathered is kept under ~/.cache/fleet/images by a hash of what was asked for;
a change of our code alone costs seconds. Cost: root, and one to two gigabytes of cache.
"""
