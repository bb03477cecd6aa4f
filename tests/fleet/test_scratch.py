"""What must be true of evaluation mode: it ends with the block, for each submodule."""

from contextlib import suppress

from torch import nn

from tramark.fleet.scratch import evaluating


class Stubborn(nn.Module):
    """Refuses to be switched, as modules of torch.export do."""

    def train(self, mode: bool = True) -> "Stubborn":
        raise NotImplementedError


def test_each_submodule_gets_its_mode_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3), Stubborn())
    model[1].eval()
    modes = [module.training for module in model.modules()]
    with suppress(KeyError), evaluating(model):
        assert not any(module.training for module in model.modules())
        model[1].train()
        raise KeyError
    assert [module.training for module in model.modules()] == modes == [True, True, False, True]
