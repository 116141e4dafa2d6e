"""Where untrusted programs run: bubblewrap, no network, an empty folder, one process, limits on everything.

The program is assumed to control every byte that leaves the sandbox. It is handed one input at a time, never
an expected result; what it says is plain data, and it is compared outside.
"""
