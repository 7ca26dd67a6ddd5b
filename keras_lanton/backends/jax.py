"""JAX: the update is traced once; conditionals take and return tensors."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_lanton.backends import reference
from keras_lanton.backends.reference import Backend
from keras_lanton.backends.reference import Devices
from keras_lanton.types import Tensor

# Number of entries up to which tensors are cheap to copy.
SMALL = 65536


class JaxBackend(Backend):
    """The functions that JAX does otherwise."""

    def for_compiler(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Within it the compiler lays out tensors on all axes of a mesh.

        An axis of `AxisType.Explicit` is part of a tensor's type: there each
        operation would have to say how its result is laid out.
        """

        @functools.wraps(update)
        def automatic(
            optimizer: Any, gradients: Any, variables: Any, learning_rate: Any
        ) -> None:
            held = [*optimizer.built_on, *optimizer.variables]
            old = [jax.typeof(v.value).sharding for v in held]
            meshes = [x.mesh for x in old if x.mesh.explicit_axes]
            if not meshes:
                update(optimizer, gradients, variables, learning_rate)
                return
            mesh = _automatic(meshes[0].abstract_mesh)
            with jax.sharding.use_abstract_mesh(mesh):
                for v in held:
                    v.assign(_untyped(v.value))
                rate = _untyped(jnp.asarray(learning_rate))
                update(optimizer, _untyped(gradients), variables, rate)
            everywhere = _layout(meshes[0])
            for v, x in zip(held, old, strict=True):
                layout = everywhere if x.mesh.empty else x
                v.assign(jax.sharding.reshard(v.value, layout))

        return automatic

    def each(self, function: Callable[[Any], Tensor], stack: Any) -> Tensor:
        return jax.lax.map(function, stack)

    def cond(
        self,
        predicate: Tensor,
        on_true: Callable[[], Any],
        on_false: Callable[[], Any],
    ) -> Any:
        # Outside a trace a compiled conditional would be compiled every step.
        if self.is_compiled(predicate):
            return jax.lax.cond(predicate, on_true, on_false)
        return on_true() if predicate else on_false()

    def is_compiled(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is of a program that is being traced."""
        return isinstance(tensor, jax.core.Tracer)

    def closes_window(self, micro_steps: Any, steps: int | None) -> Any:
        """See the reference.

        Keras runs the update on every micro-step and rolls it back, so it is
        the joint update that has to leave its work undone.
        """
        return (micro_steps.value + 1) % steps == 0 if steps else None

    def replace_if(
        self, predicate: Tensor, replace: Callable[..., Any], *old: Any
    ) -> Any:
        if not self.is_compiled(predicate):
            return replace(*old) if predicate else old
        return jax.lax.cond(predicate, replace, lambda *old: old, *old)

    def switch(
        self, index: Tensor, branches: Sequence[Callable[[], Any]]
    ) -> Any:
        if self.is_compiled(index):
            return jax.lax.switch(index, branches)
        return branches[int(index)]()

    def unpack(self, *vectors: Tensor) -> list[list[Any]]:
        table = jnp.stack(vectors)
        rows, count = table.shape
        if not self.is_compiled(table):
            return [list(jnp.unstack(row)) for row in table]
        columns = [
            jax.lax.dynamic_slice(
                table, (np.int32(0), i), (rows, 1), allow_negative_indices=False
            )
            for i in _run_time_numbers(range(count))
        ]
        return [[column[k, 0] for column in columns] for k in range(rows)]

    def pieces(self, stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        if not self.is_compiled(stack) or len(sizes) == 1:
            return super().pieces(stack, sizes)
        starts = [0, *itertools.accumulate(sizes[:-1])]
        return [
            jax.lax.dynamic_slice_in_dim(
                stack, start, size, allow_negative_indices=False
            )
            for start, size in zip(
                _run_time_numbers(starts), sizes, strict=True
            )
        ]

    def whole(self, stack: Tensor) -> Tensor:
        """See the reference: a GPU's reductions would join it anew each."""
        if self.device() == "gpu" and self.is_compiled(stack):
            stack = jax.lax.optimization_barrier(stack)
        return stack

    def bitcast(self, x: Tensor, dtype: str) -> Tensor:
        return jax.lax.bitcast_convert_type(x, dtype)

    def largest_entries(self, tensors: Sequence[Tensor]) -> Tensor:
        """See the reference: with fewer maxima to compile."""
        # One for all small tensors of a shape.
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(tensors):
            groups.setdefault(x.shape if x.size <= SMALL else i, []).append(i)
        largest = []
        for group in groups.values():
            found = jnp.stack([tensors[i].astype("float32") for i in group])
            # Not flattened: that would move tensors split over devices.
            axes = tuple(range(1, found.ndim))
            largest.append(jnp.max(jnp.abs(found), axis=axes))
        order = np.argsort(np.concatenate(list(groups.values())))
        return jnp.concatenate(largest)[order]

    def largest_of_each(self, stack: Tensor) -> Tensor:
        return jnp.max(jnp.abs(stack.astype("float32")), axis=(-2, -1))

    def devices(
        self, variables: Sequence[Any], wanted: bool | None
    ) -> Devices | None:
        """The devices that the weights lie on; None for one.

        Args:
            variables: Keras variables.
            wanted: Whether to share out work; None is the same as True.
        """
        if wanted is False:
            return None
        shardings = [
            s for s in self.layouts(variables) if isinstance(s, NamedSharding)
        ]
        meshes = [s.mesh for s in shardings if s.mesh.size > 1]
        if not meshes:
            return None
        split = not all(s.is_fully_replicated for s in shardings)
        return Devices(count=meshes[0].size, split=split, mesh=meshes[0])

    def layouts(self, variables: Sequence[Any]) -> list[Any]:
        """The sharding of each variable over devices; None for one of them.

        None too while a step is traced. All axes are automatic, as within
        `for_compiler`.
        """
        values = [variable.value for variable in variables]
        return [
            None
            if self.is_compiled(x) or x.sharding.num_devices == 1
            else _without_types(x.sharding)
            for x in values
        ]

    def laid_out(
        self, tensors: Sequence[Tensor], layouts: Sequence[Any]
    ) -> list[Tensor]:
        """See the reference: constrained to layouts where it is compiled.

        Without the constraint the compiler may bring each part of a sum to
        every device, where only the sum is needed.
        """
        return [
            x
            if layout is None or not self.is_compiled(x)
            else jax.lax.with_sharding_constraint(x, layout)
            for x, layout in zip(tensors, layouts, strict=True)
        ]

    def share_out(
        self,
        function: Callable[[Tensor], Tensor],
        stack: Tensor,
        devices: Devices,
    ) -> Tensor:
        """See the reference.

        Left to itself the compiler would communicate within each matrix
        product. Where weights are split, the stack is split along its columns
        before and after, so that one all-to-all brings whole matrices to their
        devices, and one brings them back. Else each device takes its matrices
        from what it has, and one all-gather gives the results to all; an
        all-reduce, where most devices have none to give.
        """
        mesh, count = devices.mesh, len(stack)
        if not devices.split and reference.reduces(count, devices.count):
            stack = jax.lax.with_sharding_constraint(stack, _layout(mesh))
            some = functools.partial(_one_each, function, mesh.axis_names)
            return _shard_map(some, mesh, PartitionSpec())(stack)
        missing = -count % devices.count
        stack = jnp.pad(stack, ((0, missing), *[(0, 0)] * (stack.ndim - 1)))
        matrices = PartitionSpec(mesh.axis_names)

        def held(x: Tensor) -> Tensor:
            even = x.ndim == 3 and x.shape[-1] % devices.count == 0
            spec = (
                (None, None, mesh.axis_names) if devices.split and even else ()
            )
            return jax.lax.with_sharding_constraint(x, _layout(mesh, *spec))

        return held(_shard_map(function, mesh, matrices)(held(stack)))[:count]

    def value_of(self, function: Callable[[Any], Any], count: int) -> Any:
        """Compiled: else conditionals are, every time."""
        try:
            return jax.jit(function)(np.int32(count))
        except (
            jax.errors.ConcretizationTypeError
        ):  # It wants to see the number.
            return function(count)

    def device(self) -> str:
        return str(jax.default_backend())

    def list_devices(self) -> list[str]:
        """All devices, each with the name of its kind."""
        return [f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices()]

    def tensorfloat32(self) -> bool:
        precision = jax.config.jax_default_matmul_precision
        return precision not in ("highest", "float32")

    def full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Products of float32 stay in float32."""
        context: contextlib.AbstractContextManager[Any] = (
            jax.default_matmul_precision("highest")
        )
        return context


def _run_time_numbers(numbers: Iterable[int]) -> list[Tensor]:
    """Integers that XLA does not know when it compiles.

    XLA compiles equal kernels once. With the place in them where each reads
    a vector or a stack, there would be one per variable.
    """
    # XLA would know a scalar, or a constant that is short or has a pattern.
    rest = list(range(31, 0, -1))
    vectors = [np.array([i, *rest], "int32") for i in numbers]
    return [jax.lax.optimization_barrier(vector)[0] for vector in vectors]


def _automatic(mesh: Any) -> Any:
    """The mesh with automatic axes."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _without_types(sharding: Any) -> Any:
    """The sharding, on a mesh of automatic axes."""
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or not mesh.explicit_axes:
        return sharding
    return _layout(_automatic(mesh), *sharding.spec)


def _untyped(tensors: Any) -> Any:
    """Tensors within a mesh of automatic axes."""
    specs = jax.tree.map(lambda x: PartitionSpec(), tensors)
    return jax.sharding.reshard(tensors, specs)


def _layout(mesh: Any, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))


def _one_each(
    function: Callable[[Tensor], Tensor], axes: Any, stack: Tensor
) -> Tensor:
    """On one of more devices than there are entries: all results."""
    number, last = jax.lax.axis_index(axes), len(stack) - 1
    place = jnp.minimum(number, last)
    mine = function(jax.lax.dynamic_slice_in_dim(stack, place, 1))
    mine = jnp.where(number <= last, mine, 0)
    whole = jnp.zeros((len(stack), *mine.shape[1:]), mine.dtype)
    whole = jax.lax.dynamic_update_slice_in_dim(whole, mine, place, 0)
    return jax.lax.psum(whole, axes)


def _shard_map(
    function: Callable[[Tensor], Tensor], mesh: Any, spec: Any
) -> Callable[[Tensor], Tensor]:
    """`jax.shard_map` of a function whose inputs and outputs lie alike."""
    mapped: Callable[[Tensor], Tensor] = jax.shard_map(
        function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return mapped
