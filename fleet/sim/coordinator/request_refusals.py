"""What a coordinator of KIP-848 groups says instead of doing what was asked."""

from fleet.sim.coordinator.requests import ErrorCode


class RequestRefused(Exception):
    """A request was refused: nothing was written."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(f"{code.name}: {why}")
        self.code = code
        self.why = why


def unknown_member(group: str, member: str) -> RequestRefused:
    """The group has no such member."""
    why = f"group {group} has no member {member}: join it first"
    return RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, why)


def unknown_instance(group: str, instance: str) -> RequestRefused:
    """The group has no member of that instance id."""
    why = f"group {group} has no static member {instance}: join it first"
    return RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, why)


def no_group(group: str) -> RequestRefused:
    """There is no such group."""
    why = f"there is no consumer group {group}: join it with epoch 0"
    return RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, why)


def group_is_full(group: str, size: int) -> RequestRefused:
    """The group has as many members as it may have."""
    why = f"group {group} has its {size} members already"
    return RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, why)


def group_is_not_empty(group: str, members: int) -> RequestRefused:
    """Only an empty group can be deleted."""
    why = f"group {group} has {members} members: stop them first"
    return RequestRefused(ErrorCode.NON_EMPTY_GROUP, why)


def fenced_instance(instance: str, member: str, owner: str) -> RequestRefused:
    """The instance id belongs to another member id by now."""
    why = f"static member {instance} is {owner} now, not {member}"
    return RequestRefused(ErrorCode.FENCED_INSTANCE_ID, why)


def unreleased_instance(instance: str, member: str, owner: str) -> RequestRefused:
    """The instance id's last member has not left with epoch -2."""
    why = f"{member} cannot be static member {instance} before {owner} has left with epoch -2"
    return RequestRefused(ErrorCode.UNRELEASED_INSTANCE_ID, why)


def fenced_epoch(member: str, told: int, known: int) -> RequestRefused:
    """The member's epoch is none that it may have."""
    why = f"member {member} is at epoch {known}, not {told}: it gives up all and joins with 0"
    return RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH, why)


def fenced_state(member: str) -> RequestRefused:
    """A newer broker left the member in a state that this one does not know."""
    why = f"member {member} is in a state of a newer broker: it gives up all and joins with 0"
    return RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH, why)


def invalid_request(why: str) -> RequestRefused:
    """The request's fields do not fit together."""
    return RequestRefused(ErrorCode.INVALID_REQUEST, why)


def unsupported_assignor(name: str, known: tuple[str, ...]) -> RequestRefused:
    """The coordinator has no such assignor."""
    why = f"assignor {name} is not among {', '.join(known)}"
    return RequestRefused(ErrorCode.UNSUPPORTED_ASSIGNOR, why)


def assignor_failed(group: str, epoch: int, why: str) -> RequestRefused:
    """The assignor could not place every partition."""
    why = f"no target of epoch {epoch} for group {group}: {why}"
    return RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, why)


def invalid_regex(regex: str, why: str) -> RequestRefused:
    """The regular expression is none of RE2."""
    why = f"{regex!r} is no expression: {why}"
    return RequestRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, why)
