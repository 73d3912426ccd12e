"""What the ranks of a test do, and what a test does beside them with ``torch`` on one device."""

from corerl.testing.training_ranks import RankJobs
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy


class Jobs(RankJobs):
    """``torch`` where a job has no options of ``fsdp``."""

    def strategy(self, job):
        if "fsdp" in job:
            return FsdpStrategy(self.spec(job), FsdpOptions(**job["fsdp"]))
        return SingleDeviceStrategy(self.spec(job), TorchOptions(logits_chunk_size=None))

    def record_gradient(self, strategy, seen):
        take_step = strategy._step

        def step(*arguments):
            for name, parameter in strategy.model.named_parameters():
                gradient = parameter.grad
                if gradient is None:
                    continue
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                seen[name] = whole.cpu().clone()
            return take_step(*arguments)

        strategy._step = step


run = Jobs()
