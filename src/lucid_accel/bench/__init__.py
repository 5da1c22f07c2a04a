"""``lucid-accel bench``: whole fits, native and accelerated in alternation; and what our benchmarks share with it."""
