from __future__ import annotations

from torch import Tensor, nn

from fedexp.core.ranges import Count, Depth
from fedexp.errors import ConfigError
from fedexp.models.split import SplitModel


class LastState(nn.Module):
    """Embeds characters, runs an LSTM over them and returns its last output.

    Args:
        vocabulary: Number of different characters.
        embedding: Width of a character's embedding.
        hidden: Width of the LSTM.
        layers: LSTMs stacked.
    """

    def __init__(self, vocabulary: int, *, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [N, hidden] for the characters [N, length]."""
        if x.is_floating_point():  # rounding them would make nonsense of data that are no characters
            raise ConfigError(f"model=charlstm reads characters as whole numbers (int64), but the data are {x.dtype}.")
        out: Tensor = self.lstm(self.embed(x))[0]
        return out[:, -1]


def charlstm(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    vocabulary: Count | None = None,
    embedding: Count = 8,
    hidden: Count = 256,
    layers: Depth = 2,
    bias: bool = False,
) -> SplitModel:
    """The network of LEAF (Caldas et al., 2018) for Shakespeare: FedRS, KDD 2021, table 4 ("CharLSTM").

    Reads a sequence of characters, as int64 [N, length], and guesses the next. With 81 characters the features have
    799,368 parameters and 256 dimensions (FedRS, table 4; torch's two bias vectors per layer are counted). torch's
    default initialisation.

    Args:
        shape: The length alone; any length will do.
        n_classes: The number of logits.
        vocabulary: Number of different characters; null: as many as classes, since the next character is the class.
        embedding: Width of a character's embedding.
        hidden: Width of the LSTM, the feature dimension.
        layers: LSTMs stacked.
        bias: Whether the classifier has one.
    """
    if len(shape) != 1:
        raise ConfigError(
            f"model=charlstm reads sequences of characters (length,), but a sample has the shape {shape}. "
            "Use a network for images (model=lenet) or for anything (model=mlpnet)."
        )
    tokens = n_classes if vocabulary is None else vocabulary
    features = LastState(tokens, embedding=embedding, hidden=hidden, layers=layers)
    return SplitModel(features, nn.Linear(hidden, n_classes, bias=bias), hidden)
