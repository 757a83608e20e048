"""Commands of the broker's package: ``raylog up``, ``down``, ``status``, ``doctor``, ``brokers drain`` and ``raylog
log``.

``commands`` and ``log_commands`` are plugged into the command line by entry points, and load what they need when they
run; ``doctor`` looks (``doctor_facts``) and judges (``doctor_checks``). Nothing calls this room. Begin with
``commands``.
"""
