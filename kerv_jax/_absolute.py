import jax.numpy as jnp
from kerv_jax import kernels
def absolute_distance(lhs, rhs, *, strides, rhs_dilation, groups):
  from kerv_jax.kervolution import kerv_general_dilated
  n=lhs.ndim; s="DHW"[-(n-2):]
  return kerv_general_dilated(lhs, rhs, strides, "VALID", None, rhs_dilation, ("N"+s+"C", s+"IO","N"+s+"C"), groups, kernel_fn=kernels.L1(), method="patches")
