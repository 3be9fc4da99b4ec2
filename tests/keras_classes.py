"""Every class of Keras 2 that computes something: how it is made, and on what it is called."""

from __future__ import annotations

import inspect

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras import layers as L

from tests.captured_models import Spec

VECTORS, ROWS, IMAGE, VOLUME = (Spec(shape) for shape in ([4, 6], [4, 8, 6], [2, 8, 8, 3], [2, 6, 6, 6, 2]))
FILM = Spec([2, 3, 8, 8, 2])
COUNTS = Spec([4, 3], tf.int32)


def classes(module, base):
    """Subclasses of a class by name."""
    return {name: kind for name, kind in vars(module).items() if inspect.isclass(kind) and issubclass(kind, base)}


def _each(spec, *names, **options):
    return {name: (lambda name=name: getattr(L, name)(**options), (spec,)) for name in names}


def _pairs(*names, **options):
    """Layers that take a list of two tensors."""
    return {name: (lambda name=name: getattr(L, name)(**options), ([ROWS, ROWS],)) for name in names}


# For each layer what makes it, and the specs of its arguments.
LAYERS = {
    **_each(VECTORS, "ELU", "Flatten", "LeakyReLU", "PReLU", "ReLU", "Softmax", "ThresholdedReLU", "LayerNormalization",
            "BatchNormalization", "UnitNormalization", "Masking"),
    **_each(VECTORS, "AlphaDropout", "Dropout", "GaussianDropout", rate=0.3), **_each(VECTORS, "GaussianNoise", stddev=0.3),
    **_each(VECTORS, "Dense", units=5), **_each(VECTORS, "Activation", activation="gelu"), **_each(VECTORS, "RepeatVector", n=3),
    **_each(VECTORS, "Reshape", target_shape=(2, 3)), **_each(VECTORS, "Rescaling", scale=2.0, offset=1.0),
    **_each(VECTORS, "Normalization", mean=1.0, variance=2.0), **_each(VECTORS, "Discretization", bin_boundaries=[-0.5, 0.0, 0.5]),
    **_each(COUNTS, "CategoryEncoding", num_tokens=5, output_mode="count"), **_each(COUNTS, "Embedding", input_dim=7, output_dim=5),
    **_each(COUNTS, "Hashing", num_bins=3),
    **_each(ROWS, "SpatialDropout1D", rate=0.3), **_each(IMAGE, "SpatialDropout2D", rate=0.3),
    **_each(VOLUME, "SpatialDropout3D", rate=0.3),
    **_each(ROWS, "AveragePooling1D", "MaxPooling1D", "GlobalAveragePooling1D", "GlobalMaxPooling1D", "UpSampling1D", "ZeroPadding1D",
            "Cropping1D"),
    **_each(IMAGE, "AveragePooling2D", "MaxPooling2D", "GlobalAveragePooling2D", "GlobalMaxPooling2D", "UpSampling2D", "ZeroPadding2D"),
    **_each(VOLUME, "AveragePooling3D", "MaxPooling3D", "GlobalAveragePooling3D", "GlobalMaxPooling3D", "UpSampling3D", "ZeroPadding3D",
            "Cropping3D"),
    **_each(IMAGE, "Cropping2D", cropping=1), **_each(IMAGE, "GroupNormalization", groups=3),
    **_each(ROWS, "Conv1D", "Conv1DTranspose", "LocallyConnected1D", "SeparableConv1D", filters=4, kernel_size=3),
    **_each(IMAGE, "Conv2D", "Conv2DTranspose", "LocallyConnected2D", "SeparableConv2D", filters=4, kernel_size=3),
    **_each(VOLUME, "Conv3D", "Conv3DTranspose", filters=4, kernel_size=3),
    **_each(ROWS, "DepthwiseConv1D", kernel_size=3), **_each(IMAGE, "DepthwiseConv2D", kernel_size=3),
    **_each(Spec([2, 3, 8, 2]), "ConvLSTM1D", filters=3, kernel_size=3), **_each(FILM, "ConvLSTM2D", filters=3, kernel_size=3),
    **_each(Spec([2, 3, 4, 4, 4, 2]), "ConvLSTM3D", filters=3, kernel_size=3),
    **_each(ROWS, "GRU", "LSTM", "SimpleRNN", units=5), **_each(ROWS, "Permute", dims=(2, 1)),
    **_each(ROWS, "EinsumDense", equation="abc,cd->abd", output_shape=(None, 5)),
    **_pairs("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract", "Attention", "AdditiveAttention"),
    **_pairs("Dot", axes=2),
    **_each(IMAGE, "CenterCrop", "RandomCrop", height=5, width=6), **_each(IMAGE, "Resizing", height=5, width=6),
    **_each(IMAGE, "RandomBrightness", "RandomContrast", "RandomRotation", factor=0.2),
    **_each(IMAGE, "RandomFlip"), **_each(IMAGE, "RandomTranslation", "RandomZoom", height_factor=0.2, width_factor=0.2),
    "Bidirectional": (lambda: L.Bidirectional(L.LSTM(3)), (ROWS,)),
    "GRUCell": (lambda: L.GRUCell(5), (VECTORS, Spec([4, 5]))),
    "LSTMCell": (lambda: L.LSTMCell(5), (VECTORS, [Spec([4, 5]), Spec([4, 5])])),
    "Lambda": (lambda: L.Lambda(lambda x: x * tf.sin(x)), (VECTORS,)),
    "MultiHeadAttention": (lambda: L.MultiHeadAttention(2, 4), (ROWS, ROWS)),
    "RNN": (lambda: L.RNN([L.GRUCell(4), L.SimpleRNNCell(3)]), (ROWS,)),
    "SimpleRNNCell": (lambda: L.SimpleRNNCell(5), (VECTORS, Spec([4, 5]))),
    "SpectralNormalization": (lambda: L.SpectralNormalization(L.Dense(5)), (VECTORS,)),
    "StackedRNNCells": (lambda: L.StackedRNNCells([L.SimpleRNNCell(4), L.SimpleRNNCell(3)]), (VECTORS, [Spec([4, 4]), Spec([4, 3])])),
    "TimeDistributed": (lambda: L.TimeDistributed(L.Dense(5)), (ROWS,)),
}
LAYERS_LEFT_OUT = {
    "AbstractRNNCell": "a base class", "Layer": "a base class", "Wrapper": "a base class", "InputLayer": "computes nothing",
    "Identity": "computes nothing", "ActivityRegularization": "computes a loss that its function does not return",
    **dict.fromkeys(("RandomHeight", "RandomWidth"), "draw their size, where a capture wants fixed ones; compute nothing in inference"),
    "DenseFeatures": "takes feature columns, which look up texts and tables",
    "HashedCrossing": "takes texts, or dense integers as texts of each",
    **dict.fromkeys(("IntegerLookup", "StringLookup", "TextVectorization"), "looks up in a table, which a capture refuses")}
# In inference they give what they are given.
ONLY_IN_TRAINING = {"AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "RandomBrightness", "RandomContrast", "RandomFlip",
                    "RandomRotation", "RandomTranslation", "RandomZoom", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"}

OPTIMIZERS = {f"{where}{name}": kind for where, module in (("", tf_keras.optimizers), ("legacy.", tf_keras.optimizers.legacy))
              for name, kind in classes(module, (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)).items()}
OPTIMIZERS_LEFT_OUT = {"Optimizer": "a base class", "legacy.Optimizer": "a base class"}
# What else changes the operations of a step.
OPTIMIZER_OPTIONS = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"clipnorm": 0.1}],
    "legacy.SGD": [{"momentum": 0.9, "nesterov": True}, {"clipvalue": 0.1}],
    "RMSprop": [{"momentum": 0.5, "centered": True}], "legacy.RMSprop": [{"momentum": 0.5, "centered": True}],
    "Adam": [{"amsgrad": True, "weight_decay": 0.01, "use_ema": True}], "legacy.Adam": [{"amsgrad": True}]}


def optimizer(name, options):
    """An optimizer with a learning rate that differs from step to step, where it may."""
    if name == "legacy.Nadam":
        return OPTIMIZERS[name](**options)
    return OPTIMIZERS[name](tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), **options)


def optimizer_step(chosen):
    """A training step whose gradients are dense and sparse, and its specs."""
    model = tf_keras.Sequential([L.Embedding(7, 6, input_length=3), L.Flatten(), L.Dense(8, "relu"), L.Dense(3)])
    model.build((4, 3))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        chosen.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss
    return step, (COUNTS, Spec([4, 3]))


LOSSES = {name: kind for name, kind in classes(tf_keras.losses, tf_keras.losses.Loss).items()}
LOSSES_LEFT_OUT = {"Loss": "a base class"}


def loss_and_gradient(name):
    """A loss and the gradient of its predictions, which are probabilities, and the specs."""
    loss, sparse = LOSSES[name](), name.startswith("Sparse")

    @tf.function
    def compute(y, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(y if sparse else tf.nn.softmax(y), tf.nn.softmax(x))
        return value, tape.gradient(value, x)
    return compute, (Spec([6], tf.int32) if sparse else Spec([6, 4]), Spec([6, 4]))


# One of each family, on the smallest images that it takes.
APPLICATIONS = {
    "ConvNeXtTiny": 32, "DenseNet121": 32, "EfficientNetB0": 32, "EfficientNetV2B0": 32, "InceptionV3": 75, "MobileNet": 32,
    "MobileNetV2": 32, "MobileNetV3Small": 32, "NASNetMobile": 32, "RegNetX002": 32, "ResNet50": 32, "ResNet50V2": 32, "VGG16": 32,
    "Xception": 71}
FAMILIES_LEFT_OUT = {"inception_resnet_v2": "blocks of inception_v3 and resnet", "resnet_rs": "blocks of resnet_v2 and efficientnet",
                     "vgg19": "vgg16 with three layers more", "resnet50": "another name of resnet", "imagenet_utils": "no model"}


def application(name):
    """A network with random weights, and the spec of its images."""
    size = APPLICATIONS[name]
    tf.random.set_seed(0)
    model = getattr(tf_keras.applications, name)(weights=None, include_top=False, pooling="avg", input_shape=(size, size, 3))
    rng = np.random.default_rng(0)  # layers that start at zero or one would hide mistakes
    model.set_weights([value + 0.05 * rng.random(value.shape, np.float32) if value.ndim == 1 else value for value in model.get_weights()])
    return model, Spec([2, size, size, 3])
