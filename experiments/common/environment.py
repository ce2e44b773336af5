"""What is known of the machine without JAX."""

import platform


def processor() -> str:
  """The processor's name."""
  try:
    with open("/proc/cpuinfo") as info:
      names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0]
  except (OSError, IndexError):
    return platform.processor() or platform.machine()
