"""The tensor operators that a `torch.export` archive may call: those of inference, and no others.

Torch has thousands of operators, and not all of them check what they are given. This list holds the ones that exports
of classifiers are made of. Of operators that overwrite a tensor it holds the elementwise ones.
"""

LAYERS = """
_adaptive_avg_pool2d _log_softmax _native_batch_norm_legit_no_training _safe_softmax _softmax adaptive_avg_pool1d
adaptive_avg_pool2d adaptive_max_pool2d addmm alpha_dropout avg_pool1d avg_pool2d baddbmm batch_norm bilinear bmm
conv1d conv2d conv3d conv_transpose2d convolution cosine_similarity dot dropout einsum embedding feature_dropout
group_norm instance_norm layer_norm linalg_vector_norm linear log_softmax matmul max_pool1d max_pool2d
max_pool2d_with_indices mm mv native_batch_norm native_dropout native_group_norm native_layer_norm norm normalize
outer pixel_shuffle pixel_unshuffle rms_norm scaled_dot_product_attention softmax upsample_bicubic2d
upsample_bilinear2d upsample_nearest2d
"""
ELEMENTWISE = """
abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or ceil celu clamp clamp_max clamp_min cos div elu eq erf exp
expm1 floor floor_divide fmod ge gelu glu gt hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp
log log1p log2 log_sigmoid logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish
mul nan_to_num ne neg pow prelu reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin softplus
softsign sqrt square sub tanh threshold true_divide trunc where
"""
OVERWRITING = """
add_ celu_ clamp_ clamp_max_ clamp_min_ div_ dropout_ elu_ exp_ hardsigmoid_ hardswish_ hardtanh_ leaky_relu_
masked_fill_ mish_ mul_ neg_ relu6_ relu_ rsqrt_ selu_ sigmoid_ silu_ sqrt_ sub_ tanh_ threshold_
"""
REDUCTIONS = """
all amax amin any argmax argmin argsort cumsum logsumexp max mean median min prod softmax sort std std_mean sum topk
var var_mean
"""
SHAPES = """
_assert_scalar _assert_tensor_metadata _to_copy _unsafe_view alias arange broadcast_to cat chunk clone concat
constant_pad_nd contiguous copy detach detach_ diagonal expand expand_as eye flatten flip full full_like gather im2col
index index_select lift_fresh_copy masked_select meshgrid movedim narrow new_full new_ones new_zeros numpy_T one_hot
ones ones_like pad permute reflection_pad2d repeat repeat_interleave replication_pad2d reshape reshape_as roll
scalar_tensor select slice split split_with_sizes squeeze stack swapaxes sym_constrain_range_for_size
sym_is_contiguous sym_numel sym_size sym_stride t to transpose tril triu type_as unbind unflatten unfold unsqueeze
view view_as zeros zeros_like
"""

ALLOWED = frozenset(" ".join((LAYERS, ELEMENTWISE, OVERWRITING, REDUCTIONS, SHAPES)).split())
