"""Make the marks.

Two ways. **Gradient steps in places** (the paper's): each client's model is trained on its key, and only the places
of the region move. **The closed form in a subspace** (ours, the default): let K (in × N) hold a linear layer's inputs
for all variants of the m questions, E (m × N) say which column belongs to which question, and M be the second moment
of the layer's inputs on the clients' data, as their updates reveal it. The edit

    D_i = R_i Bᵀ ,   B = (K Kᵀ + λ M)⁻¹ K Eᵀ  =  M⁻¹K (Kᵀ M⁻¹ K + λ I)⁻¹ Eᵀ

is the one that changes the layer's answer to question q by column q of R_i while changing its answers on the clients'
data least. B is the same for everybody. R_i (out × m) is the smallest change that gives client i's answers by a
margin, found by a short search through the layers behind. What is small is judged on this side, too, by the clients'
data: a change counts by how hard their gradients pull at the layer's outputs in its direction. So the task hardly feels
an edit, and hardly any gradient runs back through it. The directions of B span the region; no inverse is ever formed.

Everything runs in evaluation mode: neither dropout nor the questions' batch statistics reach the model.
"""

from collections.abc import Callable

from torch import Tensor

from tramark.marks.closed_form import ClosedForm
from tramark.marks.gradient import GradientSteps
from tramark.marks.injection import Injection

State = dict[str, Tensor]


PRESETS: dict[str, Callable[[float], Injection]] = {
    "default": lambda ratio: ClosedForm(),
    "paper": lambda ratio: GradientSteps(ratio=ratio),
    "released": lambda ratio: GradientSteps(ratio=ratio, per_tensor=True, batch_size=32, summed=True),
    "late": lambda ratio: GradientSteps(ratio=ratio, per_tensor=True, late=True, batch_size=32, summed=True),
}
