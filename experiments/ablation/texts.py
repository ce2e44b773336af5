"""What the page says beside its numbers."""

from experiments.ablation.accuracies import NO_BETTER, REACHED
from experiments.ablation.evidence import FEWEST
from experiments.ablation.robustness import NO_MORE_ROBUST, SLACK
from experiments.ablation.speeds import ALIKE, NEARLY, NO_FASTER


def _flow(text: str) -> str:
  """A paragraph on one line."""
  return " ".join(text.split())


OPENING = _flow("""
  Does kervolution help once each network has its own learning rate, or is it a bigger step in
  disguise? A KNN is a kervolutional network. Tables, plots and verdicts are made by `python -m
  experiments report` from `rows.jsonl`, in which each row has the command that makes it again.
""")

PROTOCOL = "\n".join(
  _flow(text)
  for text in (
    """
    - Training: LeNet-5, SGD with momentum 0.9, batches of {batch_size}, learning rate 0.003, times
      0.1 after {first:g} and {second:g} of {epochs} epochs, inputs in [0, 1], PyTorch's
      initialisation; {train} training and {test} test images; {seeds}{cost}.
    """,
    """
    - Accuracy: after the last epoch.
    """,
    """
    - Speed: steps to 98 %, at the first of six evaluations in each epoch at which a network has
      that accuracy, and, since that is one noisy moment, the error of epochs 1 to 3, which is the
      geometric mean over the 18 evaluations in these. (That measure was added when the first rows
      were there; a row's own `steps_to_target` is of all its evaluations, of which the first epoch
      has 24.) Seconds are of training steps alone, at the pace of each network's fastest run,
      since the machine was shared with other work, which still makes a tenth of difference or more;
      of runs that were made at once there are none.
    """,
    """
    - Numbers: mean ± standard deviation [95 % interval of the mean, cut at what is possible]. In
      the plots, lines are means over seeds; bands reach from the lowest to the highest.
    """,
  )
)

RULES = "\n".join(
  _flow(text)
  for text in (
    f"""
    - Brackets are 95 % intervals, by Student's t, seed by seed (networks of one seed share initial
      weights, as far as they have the same, and the order of images), from at least {FEWEST} seeds.
      What they decide neither way is *undecided*. A claim does not hold of a network of which a run
      diverged, and is undecided if one of the other network did.
    """,
    f"""
    - *Sooner*: the interval of the quotient of steps to 98 %, made wider by the steps between
      evaluations, lies above 1; else it is not if the interval lies below {NO_FASTER:g}, or if the
      network does not get to 98 % in as many runs as the other one, or more. If only the other one
      does not, its last step counts, and the quotient is a lower bound. *Twice as fast*: the
      interval lies above the root of 2, its middle above {2 * NEARLY:g} and its end above 2; it is
      not if the interval lies below 2. All that is undecided if it comes out otherwise by all
      evaluations.
    """,
    f"""
    - *Fewer errors in the first three epochs*: the interval of the quotient of errors lies above 1;
      else they are not fewer if it lies below {NO_FASTER:g}. A *lead* is that quotient, if it lies
      above 1; it *shrinks* if the quotient of the leads at both rates lies above 1. *Learn alike*:
      the interval is within a factor of {ALIKE:g}, or all weights are the same in the end; not if
      it lies outside.
    """,
    f"""
    - *More accurate*: the interval of the difference of final accuracies lies above 0; else it is
      not if it lies below {100 * NO_BETTER:g} points. *As accurate but for 0.1 points*: it lies
      above -{100 * NO_BETTER:g} points; not if below.
    """,
    f"""
    - *An accuracy of the paper*, which is of one run, is reached if our mean is with 95 %
      (one-sided) not lower, but for {100 * REACHED:g} points; else it is not if it lies above the
      interval in which one more run of ours falls with 95 %. (For the CNN without activations: nor
      higher, nor below.)
    """,
    f"""
    - *More robust*: the interval of the difference under attack lies above 0; else it is not if it
      lies below {100 * NO_MORE_ROBUST:g} point. *Masked*, a search for signs, of which none need be
      found: images made for another network fool it more than the strongest of its own of the same
      epsilon, or one step fools it more than twenty, by more than {100 * SLACK:g} points; twenty
      steps of epsilon 0.3 leave a tenth of the images or more; or the gradient of one image in a
      hundred is 0.
    """,
    """
    - Claims about speed and about the better network are looked at twice, by the paper's protocol
      and with tuned rates. *Some KNN*: any of the seven that were tuned; yes by intervals so much
      wider that all seven hold with 95 % (Bonferroni), no if it is no of each by those of 95 %.
    """,
  )
)

OTHER_PROTOCOL = "These runs are shorter than the paper's, or of fewer images: it is not judged."

TRANSFER = _flow("""
  PGD: 20 steps of an eighth of epsilon, three random starts, every second one on the margin in
  place of the cross entropy. Transfer: images made for one network, shown to networks of another
  seed.
""")

README = _flow("""
  LeNet-5 on MNIST with a kervolution as its first layer, a KNN (conv-kerv: as its second,
  kerv-kerv: as both): by the paper's protocol (learning rate 0.003) and with each network's own
  learning rate, chosen on held-out training images. Mean ± standard deviation, of accuracies [95 %
  interval of the mean], of {seeds}; in the plot, lines are means, and bands reach from the lowest
  to the highest. Below, brackets are 95 % intervals of quotients or differences, seed by seed;
  undecided is what they allow both ways.
""")
