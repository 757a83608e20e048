"""InitProducerId (API 22): a number and an epoch for an idempotent producer. KIP-98, 360.

v0, v1  a producer id
v2      flexible
v3      the producer names the id and epoch that it had, to go on as a transactional producer
v4, v5  other error codes for transactional producers

Any broker answers. Transactions are not offered: a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as from
FindCoordinator. An idempotent producer that asks again gets a new id, as with Kafka, also where it names the one that
it had. An id without an epoch, an epoch without an id and an empty transactional id are INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import (
    CLUSTER_NAME,
    Operation,
    Ports,
    RequestContext,
    Resource,
)
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.protocol.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InvalidRequest,
    RaylogError,
    TransactionalIdAuthorizationFailed,
    code_of,
)
from raylog.protocol.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId


def no_transactions(transactional_id: str) -> RaylogError:
    """What a transactional producer is told: an error that no client takes for one that passes."""
    return TransactionalIdAuthorizationFailed(
        f"transactional.id={transactional_id}: raylog offers no transactions yet; use an idempotent producer, without "
        "transactional.id"
    )


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    _check(request)
    if request.transactional_id is not None:
        raise no_transactions(request.transactional_id)
    if not ports.authorizer.allows(ctx, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not be an idempotent producer")
    return _response(ctx, ErrorCode.none, ports.producer_ids.next_producer_id(), ProducerEpoch(0))


def _check(request: Any) -> None:
    """Raises InvalidRequest."""
    if request.transactional_id == "":
        raise InvalidRequest("transactional.id is empty: leave it out, or name one")
    producer_id = getattr(request, "producer_id", NO_PRODUCER_ID)
    epoch = getattr(request, "producer_epoch", NO_PRODUCER_EPOCH)
    if (producer_id == NO_PRODUCER_ID) != (epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest(f"producer id {producer_id} with epoch {epoch}: name both, or -1 for both")


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, code_of(error), NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def _response(ctx: RequestContext, code: ErrorCode, producer_id: ProducerId, epoch: ProducerEpoch) -> Any:
    return make(
        types_of(ctx).InitProducerIdResponse,
        throttle_time=throttle(ctx),
        error_code=code,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
