"""Manifests for whoever asks: a worker's pod never does, and does not pay for what makes them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleet.clock import Clock
from fleet.config.spec import FleetSpec
from fleet.kubernetes.client.api import connect

if TYPE_CHECKING:
    from fleet.act.runtime import ManifestOptions, Manifests


class Rendering:
    """The part of `fleet.act.runtime.RuntimeKind` that knows manifests."""

    def manifests(self, spec: FleetSpec, options: "ManifestOptions") -> "Manifests":
        """See `fleet.kubernetes.manifests.rendering.manifests`."""
        from fleet.kubernetes.manifests.rendering import manifests  # noqa: PLC0415

        return manifests(spec, options)

    def try_out(
        self, spec: FleetSpec, made: "Manifests", *, environ: Mapping[str, str], clock: Clock
    ) -> tuple[str, ...]:
        """See `fleet.kubernetes.manifests.rendering.try_out`."""
        from fleet.kubernetes.manifests.part_objects import kubernetes  # noqa: PLC0415
        from fleet.kubernetes.manifests.rendering import try_out  # noqa: PLC0415

        runtime = kubernetes(spec)
        with connect(
            namespace=runtime.namespace, context=runtime.context, environ=environ, clock=clock
        ) as api:
            return try_out(api, made.objects)
