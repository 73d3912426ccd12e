"""Places a model on ranks: built without storage, sharded by FSDP2, and filled with each rank's shares."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError
from corerl.models import DTYPES, compute_dtype
from corerl_fsdp import tensor_parallel
from corerl_fsdp.filling import Weights
from corerl_fsdp.mixture import prepare, shares_prefixes
from corerl_fsdp.options import FsdpOptions
from corerl_fsdp.tensor_parallel import TensorGroup
from corerl_fsdp.token_model import TokenModel, decoder_layers
from corerl_torch import lora
from corerl_torch.context_parallel import RowGroup
from corerl_torch.experts.grouped import expert_modules
from corerl_torch.experts.parallel import ExpertGroup
from corerl_torch.media import freeze_tower, in_tower
from corerl_torch.ranks import grid
from corerl_torch.sequence_parallel import check_heads


def shard_mesh(ranks: DeviceMesh, options: FsdpOptions) -> tuple[DeviceMesh, TensorGroup | None]:
    """The mesh that FSDP2 shards over, and the ranks that divide matrices; a collective.

    The mesh has all ranks that hold the same parts of the matrices, or (copies, ranks of a shard group) of them.

    Raises:
        ConfigError: the size of a group does not divide the number of ranks, or groups do not go together.
    """
    options.check_groups("actor.strategy")
    tensor, shards = options.tensor_model_parallel_size, options.fsdp_size
    if ranks.size() % tensor:
        raise ConfigError(tensor_parallel.KEY, f"{tensor} does not divide the {ranks.size()} ranks")
    alike = ranks.size() // tensor
    if shards != -1 and alike % shards:
        among = f" with the same parts of the matrices ({tensor_parallel.NAME}={tensor})" if tensor > 1 else ""
        raise ConfigError("actor.strategy.fsdp_size", f"{shards} does not divide the {alike} ranks{among}")
    copies = shards not in (-1, alike)
    sizes = ((shards,) if copies else ()) + ((tensor,) if tensor > 1 else ())
    if not sizes:
        return ranks, None
    names = (("replicate",) if copies else ()) + ("shard",) + (("tensor",) if tensor > 1 else ())
    mesh = grid(sizes, ranks.device_type, options.timeout, names)
    return (mesh, None) if tensor == 1 else (mesh[names[:-1]], TensorGroup(mesh))


def sharded_model(
    spec: StrategySpec,
    options: FsdpOptions,
    mesh: DeviceMesh,
    sharing: RowGroup | None = None,
    experts: ExpertGroup | None = None,
    tensor: TensorGroup | None = None,
) -> TokenModel:
    """The model with its weights, sharded by decoder layer; the rest is sharded as a whole.

    Experts that ranks divide are sharded over the ranks with the same experts.

    Trained weights are float32, others in ``model.dtype``; compute is in ``model.dtype``; gradients are summed over
    ranks in ``reduce_dtype``.

    Args:
        mesh: from :func:`shard_mesh`.
        sharing: the ranks that share rows with this one.
        experts: the ranks that divide the experts with this one.
        tensor: the ranks that divide matrices with this one.

    Raises:
        ConfigError: the model's attention heads, matrices or experts cannot be divided among the ranks.
        ModelError: as from :func:`~corerl_torch.loading.load_model`, on all ranks; or the model does not name its
            layers.
    """
    compute, dtype = compute_dtype(spec.model, spec.device), lora.weights_dtype(spec)
    weights = Weights(spec, dtype)
    model = weights.model
    plan = None if tensor is None else tensor_parallel.plan_of(model.config, tensor.size)
    if sharing is not None and sharing.heads is not None:
        heads = model.config.get_text_config().num_attention_heads
        check_heads(sharing.heads.size, heads, options.tensor_model_parallel_size)
    weights.find()
    if tensor is not None and plan is not None:
        options.check_groups("actor.strategy", adapters=lora.enabled(spec))
        tensor_parallel.divide(model, plan, tensor)
    if lora.enabled(spec):
        lora.add(model, spec)
    elif options.freeze_vision_tower and spec.head == "lm":
        freeze_tower(model, "actor.strategy.freeze_vision_tower")
    prepare(model, spec, options, experts)
    token_model = TokenModel(
        model,
        spec,
        use_remove_padding=options.use_remove_padding,
        share_prefixes=shares_prefixes(options),
        logits_chunk_size=options.logits_chunk_size,
        compiled=options.compile,
        sharing=sharing,
        tensor=tensor,
        bitwise=options.bitwise,
        fp8=options.fp8,
        sharded=mesh.size() > 1,
        offloads=options.activation_offload,
    )
    mixed = spec.optim is not None and compute != torch.float32
    on_cpu = options.offload_policy
    offload = CPUOffloadPolicy(pin_memory=spec.device == "cuda") if on_cpu else OffloadPolicy()
    policy = MixedPrecisionPolicy(param_dtype=compute if mixed else None, reduce_dtype=DTYPES[options.reduce_dtype])
    divided = mesh.shape[-1] > 1 or on_cpu  # else a single rank of a group holds all weights
    reshard = options.reshard_after_forward and divided
    if experts is not None:
        freed = options.reshard_after_forward and (experts.replicas.size() > 1 or on_cpu)
        for module in expert_modules(model).values():
            experts.divide(module)
            fully_shard(
                module,
                mesh=experts.replicas,
                mp_policy=policy,
                reshard_after_forward=freed,
                offload_policy=offload,
                shard_placement_fn=lambda _: Shard(1),  # the first dimension is that of the experts
            )
    as_given = replace(policy, cast_forward_inputs=False)  # the angles of patches are in float32, also if recomputed
    towers = {module for name, module in model.named_modules() if in_tower(name)}
    by = None if tensor is None else tensor_parallel.sharded_dimension(tensor)
    for layer in decoder_layers(model):
        own = as_given if layer in towers else policy
        fully_shard(
            layer,
            mesh=mesh,
            mp_policy=own,
            reshard_after_forward=reshard,
            shard_placement_fn=by,
            offload_policy=offload,
        )
    fully_shard(token_model, mesh=mesh, mp_policy=policy, shard_placement_fn=by, offload_policy=offload)
    for module in token_model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)  # the sum over ranks: the loss weights are those of all rows
    if tensor is not None:
        tensor_parallel.name_wholes(tensor)
    give_storage: Any = token_model._apply

    def placed(each: Tensor) -> Tensor:
        device = "cpu" if on_cpu and isinstance(each, DTensor) else spec.device
        return torch.empty_like(each, device=device) if each.is_meta else each.to(device)

    give_storage(placed)
    weights.fill(model)
    return token_model


def full(parameter: Tensor, device: str, dtype: torch.dtype | None = None) -> Tensor:
    """The full tensor of a sharded one, on every rank and on ``device``, cast before it is gathered; a collective."""
    if isinstance(parameter, DTensor):
        sharded: Any = lora.cast(parameter.detach().to(device), dtype)
        whole: Tensor = sharded.full_tensor()
        return whole
    return lora.cast(parameter.detach().to(device), dtype)


@torch.no_grad()
def full_together(parameters: Sequence[Tensor], device: str, dtype: torch.dtype | None = None) -> list[Tensor]:
    """:func:`full` of several small tensors of one dtype, sharded by rows, in one gather."""
    sharded: list[Any] = [each for each in parameters if isinstance(each, DTensor)]
    if len(sharded) < len(parameters):
        return [full(each, device, dtype) for each in parameters]
    mesh = sharded[0].device_mesh
    mesh = mesh["shard"] if mesh.ndim > 1 else mesh
    held = [each.to_local().to(device) for each in sharded]
    own = lora.cast(torch.cat([each.reshape(-1) for each in held]), dtype)
    shares = [[_elements(each, mesh.size(), rank) for each in sharded] for rank in range(mesh.size())]
    longest = max(map(sum, shares))
    gathered = own.new_empty(mesh.size() * longest)
    dist.all_gather_into_tensor(gathered, pad(own, (0, longest - len(own))), group=mesh.get_group())
    rows = zip(torch.split(gathered, longest), shares, strict=True)
    parts = [torch.split(row[: sum(share)], share) for row, share in rows]
    return [torch.cat(pieces).view(each.shape) for each, *pieces in zip(sharded, *parts, strict=True)]


def _elements(tensor: Tensor, ranks: int, rank: int) -> int:
    """Elements of a sharded tensor that a rank holds: ``torch.chunk`` divides the rows."""
    rows = -(-len(tensor) // ranks)
    return min(rows, max(0, len(tensor) - rank * rows)) * tensor.shape[1:].numel()
