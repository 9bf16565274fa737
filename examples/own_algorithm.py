"""An algorithm of one's own in a class of ten lines: sigmoid attention beside FlashAttention-2's softmax."""

import numpy as np

import iosim


class Sigmoid(iosim.LoopAlgorithm, name="sigmoid"):
    def begin(self, at):
        self.o = np.zeros((at.q.size, at.problem.head_dim_v))

    def pair(self, at):
        self.o += at.kept / (1 + np.exp(-(at["Q"] @ at["K"].T) * at.scale)) @ at["V"]

    def end(self, at):
        at.put("O", self.o)


kernel = iosim.Kernel("sigmoid", "sigmoid", iosim.Tile(128, 64, 4), writes_lse=False)
problem = iosim.AttentionProblem(heads=32, seq_q=4096, head_dim=128, mask="causal")
for prediction in (iosim.predict(problem, kernel, "a100"), iosim.predict(problem, "fa2", "a100")):
    read = f"{prediction.l2.read / 1e9:.2f} GB read from L2, {prediction.hbm.read / 1e6:.0f} MB from HBM"
    print(f"{prediction.kernel.name}: {read}, {prediction.l2.write / 1e6:.1f} MB written")
