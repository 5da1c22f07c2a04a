"""Recordings of device work, without Lightning. To be read in this order:

1. ``engine``: what an engine is; ``tape`` and ``cuda`` are the two there are.
2. ``layout``, ``packed``, ``compare``: a tensor without its values, copies of many, equality in bits.
3. ``recording``: one region as two graphs behind a node of autograd. The heart of it.
4. ``call``: the arguments of a call, and the signature that a recording has to match.
5. ``entry`` and ``shelf``: what is known of one signature, and the recordings of all.
6. ``region``: the routing of every call: native, learnt, recorded, proven or replayed. ``context`` says where a call
   has to be native; ``listener`` is told.
7. ``certificate`` with ``fingerprint``: what in the module a recording relies on, compared at every call.
8. ``side_effects``, ``border`` and ``witness``: what Python, autograd and memory do that a recording must not miss.
9. ``proof``: a replay beside its native step, byte by byte.
"""
