"""What every part of the experiments uses, and each thing once."""
