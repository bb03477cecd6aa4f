"""A bag of words: the mean of a sentence's word vectors, then two linear layers."""

from torch import Tensor, nn

from tramark.errors import SettingError

DIM = 64


HIDDEN = 128


class BagOfWords(nn.Module):
    """Takes token ids of shape (N, L), where 0 is padding and counts for nothing."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, DIM, padding_idx=0)
        self.fc1 = nn.Linear(DIM, HIDDEN)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(HIDDEN, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        words = (tokens != 0).unsqueeze(-1)
        total = (self.embedding(tokens) * words).sum(dim=1)
        return self.fc2(self.relu(self.fc1(total / words.sum(dim=1).clamp(min=1))))  # type: ignore[no-any-return]


def text(vocabulary: int, classes: int) -> nn.Module:
    """Word vectors of 64, a hidden layer of 128."""
    if vocabulary < 2:
        raise SettingError(f"text: vocabulary is {vocabulary}; give the number of token ids, padding included")
    return BagOfWords(vocabulary, classes)
