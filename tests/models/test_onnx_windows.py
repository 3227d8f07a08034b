"""Convolutions, poolings and resampling beside onnxruntime."""

from typing import Any

import numpy as np
import pytest

from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import import_model
from tests.models.documents import model
from tests.models.onnx_nodes import OneNode, floats, integers
from tests.models.onnx_runs import run

X = floats(2, 4, 7, 8)
ROI = np.array([0, 0, -0.1, 0.2, 1, 1, 0.9, 1.15], np.float32)


def scales(*each: float) -> np.ndarray:
    return np.array(each, np.float32)


def test_deformable_convolutions_take_no_memory_before_they_are_refused() -> None:
    text = "m (float[1,1,30000,30000] x, float[1,1,30000,30000] w, float[1,1800000000,1,1] o) => (float[1,1,1,1] y)"
    made = model(f"{text} {{ y = DeformConv(x, w, o) }}")
    made.opset_import[0].version = 19
    with pytest.raises(NotSupported, match="its kernel has 900000000 elements"):
        import_model(made, {})


WINDOW = ("pads", "strides", "dilations")


@pytest.mark.parametrize(
    "node",
    [
        OneNode("Conv", [X, floats(6, 2, 3, 2), floats(6)], group=2, strides=[2, 1], pads=[1, 0, 2, 1]),
        OneNode("Conv", [X, floats(3, 4, 3, 2)], auto_pad="SAME_LOWER", strides=[2, 3]),
        OneNode("Conv", [floats(1, 2, 9), floats(3, 2, 3), floats(3)], dilations=[2], pads=[3, 1]),
        OneNode("Conv", [floats(1, 2, 4, 5, 3), floats(3, 2, 2, 2, 2)], auto_pad="VALID"),
        OneNode(
            "FusedConv",
            [X, floats(5, 4, 1, 1), floats(5)],
            domain="com.microsoft",
            activation="HardSigmoid",
            activation_params=[0.3, 0.4],
        ),
        OneNode(
            "FusedConv", [X, floats(5, 4, 1, 1), None, floats(2, 5, 7, 8)], domain="com.microsoft", activation="Relu"
        ),
        OneNode(
            "FusedConv",
            [X, floats(5, 4, 1, 1), None, floats(2, 5, 7, 8)],
            domain="com.microsoft",
            activation="Clip",
            activation_params=[-0.5, 0.5],
        ),
        OneNode("FusedConv", [X, floats(5, 4, 1, 1), None, floats(2, 5, 7, 8)], domain="com.microsoft"),
        *(
            OneNode(
                "ConvTransposeWithDynamicPads",
                [X, floats(4, 3, 3, 3), integers(1, 0, 2, 1), *bias],
                [1, 2],
                domain="com.microsoft",
                group=2,
                strides=[2, 1],
                output_padding=[1, 0],
            )
            for bias in ([], [floats(6)])
        ),
        OneNode("ConvTranspose", [X, floats(4, 3, 3, 2), floats(6)], group=2, strides=[2, 3], output_padding=[1, 2]),
        OneNode("ConvTranspose", [X, floats(4, 3, 3, 3)], strides=[2, 2], pads=[1, 0, 1, 2], dilations=[1, 2]),
        OneNode("ConvTranspose", [X, floats(4, 3, 3, 3)], strides=[2, 2], output_shape=[14, 16]),
        OneNode("ConvTranspose", [floats(1, 2, 5), floats(2, 3, 3)], strides=[2], auto_pad="SAME_UPPER"),
        OneNode("AveragePool", [X], kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 2], count_include_pad=1),
        OneNode(
            "AveragePool",
            [X],
            opset=19,
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=[3, 3],
            count_include_pad=1,
            ceil_mode=1,
        ),
        OneNode("AveragePool", [X], opset=19, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[3, 3], ceil_mode=1),
        OneNode("AveragePool", [X], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER", count_include_pad=1),
        # What rounding up lets the last window reach is no padding, though padding counts.
        OneNode(
            "AveragePool", [X], kernel_shape=[4, 3], strides=[2, 3], auto_pad="VALID", ceil_mode=1, count_include_pad=1
        ),
        OneNode("AveragePool", [X], opset=19, kernel_shape=[2, 3], dilations=[2, 1], ceil_mode=1, strides=[2, 2]),
        *(
            OneNode("MaxPool", [floats(2, 3, *sizes)], outputs=2, kernel_shape=[3] * len(sizes), storage_order=1)
            for sizes in ((9,), (5, 6), (4, 5, 6))
        ),
        OneNode("MaxPool", [X], outputs=2, kernel_shape=[2, 3], pads=[0, 1, 1, 1], strides=[2, 2]),
        OneNode("MaxPool", [floats(2, 3, 9)], outputs=2, kernel_shape=[3], ceil_mode=1, strides=[2]),
        OneNode("MaxPool", [(X * 20).astype(np.int8)], kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
        OneNode("LpPool", [X], opset=18, kernel_shape=[2, 2], p=3, pads=[1, 0, 0, 1]),
        OneNode("GlobalAveragePool", [floats(2, 3, 4)]),
        OneNode("GlobalMaxPool", [floats(2, 3, 4, 2, 3)]),
        OneNode("GlobalLpPool", [X], p=1),
        OneNode("LRN", [floats(1, 7, 3, 2)], size=3, alpha=0.3, beta=0.6, bias=1.2),
        OneNode(
            "MaxUnpool", [floats(1, 1, 2, 2), np.array([[[[1, 6], [9, 15]]]])], kernel_shape=[2, 2], strides=[2, 2]
        ),
        OneNode("MaxUnpool", [floats(1, 1, 3), integers(1, 3, 5).reshape(1, 1, 3)], kernel_shape=[2], strides=[2]),
        # 2.5 is rounded up to 3.
        OneNode(
            "MaxRoiPool",
            [X, scales(0, 1, 0, 5, 6, 1, 0, 3, 7, 4).reshape(2, 5)],
            pooled_shape=[2, 2],
            spatial_scale=0.5,
        ),
    ],
    ids=repr,
)
def test_windows(node: OneNode) -> None:
    node.compare()


@pytest.mark.parametrize(
    ("filters", "attributes"),
    [((6, 2, 3, 2), {"group": 2, "pads": [1, 0, 2, 1]}), ((4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER"})],
)
def test_convolutions_with_channels_last(filters: tuple[int, ...], attributes: dict[str, Any]) -> None:
    """Of floats, which onnxruntime has not on CPUs."""
    given = [X, floats(*filters), floats(filters[0])]
    (expected,) = (each.transpose(0, 2, 3, 1) for each in OneNode("Conv", given, **attributes).expected())
    last = [np.ascontiguousarray(X.transpose(0, 2, 3, 1)), *given[1:]]
    (made,) = OneNode("NhwcConv", last, domain="com.microsoft", **attributes).made([expected])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fused", "function"),
    [
        ({}, lambda x: x),
        ({"fused_activation": "Relu"}, lambda x: np.maximum(x, 0)),
        ({"fused_activation": "LeakyRelu"}, lambda x: np.where(x < 0, x * 0.01, x)),
        (
            {"fused_activation": "HardSigmoid", "fused_alpha": 0.3, "fused_beta": 0.4},
            lambda x: np.clip(0.3 * x + 0.4, 0, 1),
        ),
    ],
    ids=["none", "Relu", "LeakyRelu", "HardSigmoid"],
)
@pytest.mark.parametrize(("operator", "filters"), [("Conv", (6, 2, 3, 3)), ("ConvTranspose", (4, 3, 3, 3))])
def test_convolutions_with_activations_of_the_directml_provider(
    operator: str, filters: tuple[int, ...], fused: dict[str, Any], function: Any
) -> None:
    given = [X, floats(*filters), floats(6)]
    attributes: dict[str, Any] = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1]}
    expected = function(OneNode(operator, given, **attributes).expected()[0])
    node = OneNode(f"DmlFused{operator}", given, domain="com.microsoft.dml", **attributes, **fused)
    (made,) = node.made([expected])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def test_all_that_more_dimensions_have_is_one_window() -> None:
    """Of as many as onnxruntime does not take."""
    x = floats(2, 3, 2, 2, 3, 2)
    for operator, function in (("GlobalAveragePool", np.mean), ("GlobalMaxPool", np.max)):
        expected = function(x, (2, 3, 4, 5), keepdims=True)
        (made,) = OneNode(operator, [x]).made([expected])
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    for sizes in ((1, 5, 3), (1, 5, 3, 2, 2)):
        x = floats(*sizes)
        (expected,) = OneNode("LRN", [x.reshape(1, 5, 3, -1)], size=3, alpha=0.3).expected()
        (made,) = OneNode("LRN", [x], size=3, alpha=0.3).made([expected.reshape(sizes)])
        np.testing.assert_allclose(made, expected.reshape(sizes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_regions_are_read_at_the_edges_and_have_a_pixel_at_least(mode: str) -> None:
    regions = scales(0, 0, 7, 6, 2.2, 3, 2.4, 3.1).reshape(2, 4)
    attributes: dict[str, Any] = {
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": 2,
        "coordinate_transformation_mode": mode,
    }
    OneNode("RoiAlign", [X, regions, integers(1, 0)], **attributes).compare(1e-4)
    OneNode("RoiAlign", [X, regions, integers(1, 0)], spatial_scale=0.5, **attributes).compare(1e-4)
    del attributes["sampling_ratio"]  # so that it is as many as there are pixels
    OneNode("RoiAlign", [X, regions, integers(1, 0)], **attributes).compare(1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "transformation",
    ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "tf_crop_and_resize"],
)
def test_resize(mode: str, transformation: str) -> None:
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": transformation,
        "extrapolation_value": 7.0,
    }
    for sizes in ([2, 4, 11, 5], [2, 4, 1, 8 if transformation != "tf_crop_and_resize" else 3]):
        OneNode("Resize", [X, ROI, None, integers(*sizes)], [1, 3], opset=19, **attributes).compare(1e-4)
    if transformation != "align_corners":  # of which onnxruntime takes the whole size, and ONNX that with a fraction
        OneNode("Resize", [X, ROI, scales(1, 1, 1.6, 0.6)], [1, 2], opset=19, **attributes).compare(1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_around_integers_that_are_cropped_the_extrapolation_value_is_a_whole_number(dtype: str) -> None:
    x = (20 * X).astype(dtype)
    attributes: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    OneNode("Resize", [x, ROI, None, integers(2, 4, 11, 5)], [1, 3], opset=19, **attributes).compare()


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_the_nearest(rounding: str) -> None:
    attributes: dict[str, Any] = {
        "mode": "nearest",
        "nearest_mode": rounding,
        "coordinate_transformation_mode": "asymmetric",
    }
    OneNode("Resize", [X, None, scales(1, 1, 2, 1.5)], [2], opset=13, **attributes).compare()
    whole = (20 * X).astype(np.int32)
    OneNode("Resize", [whole, None, scales(1, 1, 2, 1.5)], [2], opset=13, **attributes).compare()


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("transformation", ["half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize"])
@pytest.mark.parametrize("dtype", ["int16", "int32", "uint32", "int64", "float64"])
def test_nearest_elements_of_types_that_are_not_resampled(dtype: str, transformation: str, rounding: str) -> None:
    """They are the same as those of floats."""
    attributes: dict[str, Any] = {"nearest_mode": rounding, "coordinate_transformation_mode": transformation}
    for resized in ([2, 4, 11, 5], [2, 4, 7, 3], [1, 2, 6, 9]):
        made = [
            OneNode("Resize", [each, ROI, None, integers(*resized)], [1, 3], opset=19, **attributes).made(
                [np.empty(resized, each.dtype)]
            )[0]
            for each in (np.arange(X.size).astype(name).reshape(X.shape) for name in (dtype, "float32"))
        ]
        np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize(
    "node",
    [
        OneNode("Resize", [X, scales(1, 1, 0.5, 2)], [1], opset=10, mode="nearest"),
        OneNode("Resize", [X, scales(1, 1, 0.5, 2)], [1], opset=10, mode="linear"),
        OneNode("Upsample", [X, scales(1, 1, 2, 3)], [1], opset=9, mode="nearest"),
        OneNode("Resize", [X, scales(), scales(), integers(2, 4, 14, 8)], [1, 2, 3], opset=11, mode="linear"),
        *(
            OneNode(
                "Resize",
                [X, scales(), scales(1, 1, *each)],
                [1, 2],
                opset=11,
                nearest_mode="floor",
                coordinate_transformation_mode="tf_half_pixel_for_nn",
            )
            for each in ((2, 1), (0.6, 3))
        ),
        OneNode("Resize", [X, None, scales(1, 1, 0.6, 0.4)], [2], opset=18, mode="linear", antialias=1),
        OneNode("Resize", [X, None, scales(1, 1, 0.6, 0.4)], [2], opset=18, mode="cubic", antialias=1),
        OneNode(
            "Resize",
            [X, None, scales(1, 1, 1.6, 0.4)],
            [2],
            opset=18,
            mode="cubic",
            exclude_outside=1,
            cubic_coeff_a=-0.5,
        ),
        OneNode(
            "Resize",
            [X, None, None, integers(14, 9)],
            [3],
            opset=18,
            mode="linear",
            axes=[2, 3],
            keep_aspect_ratio_policy="not_larger",
        ),
        OneNode(
            "Resize",
            [floats(2, 3, 4, 1), None, scales(1, 1, 1.5, 3)],
            [2],
            mode="cubic",
            exclude_outside=1,
            coordinate_transformation_mode="align_corners",
        ),
        OneNode("Resize", [floats(2, 3, 3, 4, 2), None, scales(1, 1, 2, 1, 2)], [2], opset=13, mode="linear"),
    ],
    ids=repr,
)
def test_other_resizing(node: OneNode) -> None:
    node.compare(1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_elements_at_places_of_a_grid(mode: str, padding: str, aligned: int) -> None:
    """Up to twice as far from the middle as the tensor reaches, where it has an infinite element as well. Volumes have
    each padding once, in turns. Only where places are turned back it matters whether there is anything between the
    borders."""
    image, grid = X.copy(), 2 * floats(2, 5, 3, 2)
    image[0, 0, -1, 0] = np.inf
    attributes: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    OneNode("GridSample", [image, grid], opset=20, **attributes).compare(1e-4)
    if padding == "reflection":
        OneNode("GridSample", [floats(2, 1, 1, 3), grid], opset=20, **attributes).compare(1e-4)
    if mode != "cubic" and aligned == (mode == "nearest") ^ (padding == "border"):
        OneNode("GridSample", [floats(1, 2, 3, 2, 4), 2 * floats(1, 2, 2, 3, 3)], opset=22, **attributes).compare(1e-4)


@pytest.mark.parametrize(
    ("sizes", "offset_group", "attributes"),
    [
        ((3, 4, 3, 2), 1, {}),
        ((4, 2, 2, 3), 2, {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
        ((2, 1, 1, 1), 4, {"group": 4, "kernel_shape": [1, 1]}),
    ],
)
@pytest.mark.parametrize("has_mask", [False, True])
def test_deformable_convolutions(
    sizes: tuple[int, ...], offset_group: int, attributes: dict[str, Any], has_mask: bool
) -> None:
    """Places that the offsets move beyond the image are partly of zeros."""
    sizes = (sizes[0] * attributes.get("group", 1), *sizes[1:])
    x, weights = floats(2, 4, 5, 6), floats(*sizes)
    pads, steps, spread = (attributes.get(name, [0, 0, 0, 0] if name == "pads" else [1, 1]) for name in WINDOW)
    outer = [
        (size + pads[k] + pads[k + 2] - spread[k] * (sizes[2 + k] - 1) - 1) // steps[k] + 1
        for k, size in enumerate(x.shape[2:])
    ]
    count = offset_group * sizes[2] * sizes[3]
    inputs = [x, weights, 2 * floats(2, 2 * count, *outer), None, None]
    if has_mask:
        inputs[3:] = [floats(sizes[0]), floats(2, count, *outer)]
    OneNode("DeformConv", inputs, opset=19, offset_group=offset_group, **attributes).compare()


def test_places_of_a_grid_that_are_no_numbers_are_somewhere() -> None:
    grid = np.full((2, 1, 3, 2), np.nan, np.float32)
    for mode in ("nearest", "bilinear"):
        (made,) = OneNode("GridSample", [X, grid], mode=mode).made([floats(2, 4, 1, 3)])
        assert made.shape == (2, 4, 1, 3)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (OneNode("GridSample", [X, floats(2, 5, 3, 3)]), "do not fit"),
        (OneNode("GridSample", [X, floats(2, 5, 3, 2)], padding_mode="wrap"), "its padding_mode wrap"),
        (OneNode("GridSample", [X.astype(np.int32), floats(2, 5, 3, 2)]), "its type INT32"),
        (OneNode("DeformConv", [X, floats(1, 4, 2, 2), floats(2, 8, 2, 1)], opset=19), "do not fit"),
        (OneNode("DeformConv", [X[0], floats(1, 4, 2, 2), floats(2, 8, 2, 1)], opset=19), "images of floats"),
        (
            OneNode("DeformConv", [X, floats(1, 4, 2, 2), floats(2, 8, 2, 1)], opset=19, kernel_shape=[3, 3]),
            "its kernel_shape",
        ),
        (OneNode("RandomNormalLike", [X]), "make its output an input of the model"),
        (OneNode("Bernoulli", [X]), "make its output an input of the model"),
        (OneNode("Conv", [floats(1, 1, 2, 2, 2, 2), floats(1, 1, 1, 1, 1, 1)]), "4 spatial dimensions"),
        (OneNode("Conv", [X, floats(1, 4, 9, 9)]), "larger than the tensor"),
        (OneNode("ConvTranspose", [X, floats(4, 1, 1, 1)], output_shape=[9, 9]), "a stride or more beyond"),
        (OneNode("AveragePool", [floats(1, 1, 2, 2, 2, 2)], kernel_shape=[1] * 4), "4 spatial dimensions, not 1 to 3"),
        (OneNode("MaxPool", [X], kernel_shape=[2]), "2 spatial dimensions, not 1 to 3 as kernel_shape"),
        (OneNode("GlobalMaxPool", [floats(2)]), "it has 1 dimensions"),
        (OneNode("LRN", [floats(2)], size=1), "it has 1 dimensions"),
        (OneNode("MaxUnpool", [floats(1, 1, 1, 1, 1), integers(0)], kernel_shape=[1, 1, 1]), "3 spatial dimensions"),
        *(
            (
                OneNode("MaxUnpool", [floats(1, 1, 1, 1), integers(0), integers(*sizes)], [2], kernel_shape=[2, 2]),
                why,
            )
            for sizes, why in (((1, 1, 2), "is none of"), ((2, 1, 2, 2), "is none of"), ((1, 1, 2, 1), "is smaller"))
        ),
        (OneNode("RoiAlign", [X, floats(1, 4), integers(0)], mode="max"), "its mode is max"),
        (OneNode("RoiAlign", [X, floats(1, 4), np.zeros(1, np.uint8)]), "its batch indices are UINT8"),
        (OneNode("Resize", [X, None, scales(1, 1, 2, 2)], opset=13), "its scales is not constant"),
        (OneNode("Resize", [X, None, None, integers(2, 4, 7, 2**40)], [3], mode="cubic"), "more than 4194304"),
        *(
            (OneNode("Resize", [X, None, *given], [2, 3], 1, 19, "", 1, **how), why)
            for given, how, why in (
                ([scales(1, 2, 2)], {}, "are not one above 0 for each of 4 axes"),
                ([scales(1, 1, 0, 2)], {}, "are not one above 0 for each of 4 axes"),
                ([None, integers(2, 4, 7)], {}, "are not one for each of 4 axes"),
                ([None, integers(2, 4, 7, 0)], {}, "its output would have size 0"),
                ([scales(1, 1, 0.1, 1)], {}, "its output would have size 0"),
                ([scales(1, 1, 2, 2)], {"mode": "area"}, "its mode is area"),
                ([scales(1, 1, 2, 2)], {"nearest_mode": "up"}, "its nearest_mode is up"),
                ([scales(1, 1, 2, 2)], {"coordinate_transformation_mode": "far"}, "transformation_mode is far"),
                ([scales(1, 1, 2, 2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}, "no roi to crop"),
            )
        ),
        *(
            (
                OneNode(
                    "Resize",
                    [X, scales(*roi), None, integers(2, 4, 3, 3)],
                    [1, 3],
                    opset=19,
                    coordinate_transformation_mode="tf_crop_and_resize",
                ),
                why,
            )
            for roi, why in (
                ([0, 0, 1, 1], "its roi has 4 elements, not two for each of 4 axes"),
                ([0, 0, 0.5, 0, 1, 1, 0.5, 1], "its roi goes from 0.5 to 0.5"),
                ([0, 0, 2, 0, 1, 1, 3, 1], "nothing of its input is inside its roi"),
            )
        ),
        (
            OneNode("Resize", [X.astype(np.int32), None, scales(1, 1, 2, 2)], [2], opset=19, mode="cubic"),
            "its mode is cubic and its type INT32",
        ),
        (
            OneNode("Resize", [floats(2, 2, 2, 2, 2), None, scales(2, 2, 2, 2, 2)], [2], opset=19, mode="linear"),
            "it resamples 5 dimensions, more than 4",
        ),
        (OneNode("FusedConv", [X, floats(1, 4, 1, 1)], domain="com.microsoft", activation="Gelu"), "Gelu"),
    ],
    ids=repr,
)
def test_refused(node: OneNode, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        run(node.model([floats(1), integers(1)]), node.inputs)
