"""What shall be done: pure functions from a frozen world to a plan, a figure or a refusal.

No I/O, no clock: `now` is an argument. Everything that is refused is refused in words.
"""
