"""Makes what docs/kernels.md shows: the figure, and the table of sizes.

Run from the repository's root: ``python docs/plot_kernels.py``; needs matplotlib.
"""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from kerv_jax import kernels

HERE = pathlib.Path(__file__).parent
LENGTHS = {27: "3x3x3", 576: "3x3x64", 4608: "3x3x512"}
"""Patch lengths of the table, with a window and channels that give them."""

SHOWN: dict[str, dict[str, kernels.Kernel]] = {
  "$L_2$ distance of $x$ and $w$": {
    "L2()": kernels.L2(),
    "Gaussian(1.0)": kernels.Gaussian(1.0),
    "Gaussian(0.1)": kernels.Gaussian(0.1),
    "Cauchy(1.0)": kernels.Cauchy(1.0),
    "RationalQuadratic(1.0, 1.0)": kernels.RationalQuadratic(1.0, 1.0),
  },
  "$L_1$ distance of $x$ and $w$": {
    "L1()": kernels.L1(),
    "Laplacian(1.0)": kernels.Laplacian(1.0),
    "Laplacian(0.1)": kernels.Laplacian(0.1),
  },
  "angle of $x$ and $w$ (degrees), $|x| = 1.5$, $|w| = 1$": {
    "Linear()": kernels.Linear(),
    "Polynomial(2, 1.0)": kernels.Polynomial(2, 1.0),
    "Polynomial(3, 1.0)": kernels.Polynomial(3, 1.0),
    "Sigmoid()": kernels.Sigmoid(),
    "Cosine()": kernels.Cosine(),
  },
}
"""What the figure shows: for each axis, kernels by label."""

STYLES = [
  ("#000000", "-"),
  ("#D55E00", "--"),
  ("#0072B2", "-."),
  ("#009E73", ":"),
  ("#CC79A7", (0, (6, 1, 1, 1))),
]
"""Colours of Okabe and Ito, and lines that tell them apart in greyscale."""

MEASURED = [
  kernels.Linear(),
  kernels.Polynomial(3, 1.0),
  kernels.Sigmoid(),
  kernels.Gaussian(1.0),
  kernels.Gaussian(1e-3),
  kernels.L1(),
  kernels.L2(),
  kernels.Laplacian(1.0),
  kernels.Laplacian(1e-3),
  kernels.Cauchy(1.0),
  kernels.RationalQuadratic(),
  kernels.Cosine(),
]
"""What the table shows."""


def plot(path: pathlib.Path) -> None:
  """Draws kappa against distance and angle.

  Args:
    path: of the image.
  """
  from matplotlib.figure import Figure

  figure = Figure(figsize=(13.5, 4.2), layout="constrained")
  for axis, (label, shown) in zip(figure.subplots(1, 3), SHOWN.items(), strict=True):
    if "angle" in label:
      where = np.linspace(0, 180, 181)
      x = 1.5 * np.stack([np.cos(np.radians(where)), np.sin(np.radians(where))], axis=-1)
      w = np.array([1.0, 0.0])
    else:
      where = np.linspace(0, 4, 201)
      x, w = where[:, None], np.zeros(1)
    for (name, kernel), style in zip(shown.items(), STYLES, strict=False):
      value = kernel(jnp.asarray(x), jnp.asarray(w))
      axis.plot(where, value, label=name, linewidth=1.8, color=style[0], linestyle=style[1])
    axis.set(xlabel=label, ylabel=r"$\kappa(x, w)$")
    axis.set_ylim(*((-2, 6) if "angle" in label else (0, 1.5)))
    axis.set_xlim(where[0], where[-1])
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9, frameon=False, handlelength=3)
  figure.savefig(path, dpi=110)


def sizes() -> list[tuple[str, list[tuple[float, float]]]]:
  """Median of |kappa| and of the norm of its gradient, for patches and filters of usual size.

  Returns:
    For each kernel its ``repr`` and, for each patch length, the two medians over patches
    ``x ~ N(0, 1)`` and filters ``w ~ N(0, 1 / K)``.
  """
  rng = np.random.default_rng(0)
  # Of one length, for one program a kernel: a zero in both adds to no value and no gradient.
  x, w = np.zeros((2, len(LENGTHS), 200, max(LENGTHS)), np.float32)
  for i, length in enumerate(LENGTHS):
    x[i, :, :length] = rng.normal(size=(200, length))
    w[i, :, :length] = rng.normal(size=(200, length)) / length**0.5

  @jax.jit
  def medians(kernel: kernels.Kernel, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    def total(w: jax.Array) -> tuple[jax.Array, jax.Array]:
      value = kernel(x, w)
      return jnp.sum(value), value

    gradient, value = jax.grad(total, has_aux=True)(w)
    norm = jnp.linalg.norm(gradient, axis=-1)
    return jnp.median(jnp.abs(value), axis=-1), jnp.median(norm, axis=-1)

  rows = []
  for kernel in MEASURED:
    values, norms = medians(kernel, jnp.asarray(x), jnp.asarray(w))
    rows.append((repr(kernel), list(zip(values.tolist(), norms.tolist(), strict=True))))
  return rows


def table() -> str:
  """The table of :func:`sizes`, in Markdown."""
  heads = [f"K = {length} ({window})" for length, window in LENGTHS.items()]
  lines = [f"| kernel | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
  for name, row in sizes():
    cells = [f"{value:.1e}, {gradient:.1e}" for value, gradient in row]
    lines.append(f"| `{name}` | {' | '.join(cells)} |")
  return "\n".join(lines)


def main() -> None:
  """Writes the figure, and the table into the page."""
  plot(HERE / "kernels.png")
  page = HERE / "kernels.md"
  begin, end = "<!-- sizes: made by docs/plot_kernels.py -->", "<!-- end of sizes -->"
  text, number = re.subn(
    f"{begin}.*?{end}", lambda _: f"{begin}\n{table()}\n{end}", page.read_text(), flags=re.S
  )
  if number != 1:
    raise SystemExit(f"{page} must have one place for the table, it has {number}")
  page.write_text(text)


if __name__ == "__main__":
  main()
