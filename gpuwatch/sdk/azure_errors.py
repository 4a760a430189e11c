"""Azure's errors in our words: what happened, why, what to do next, and whether the same call may succeed later."""

from __future__ import annotations

import re

from gpuwatch.errors import CloudError

ROLE = "deploy/azure/gpuwatch-role.json"
_ACTION = re.compile(r"perform action(?:\(s\))? '([^']+)'")  # a linked one is named last
_CAPACITY = ("allocationfailed", "allocationrequest", "outofcapacity", "skunotavailable")
_QUOTA = ("quota", "operationnotallowed")


class GroupChanged(CloudError):
    """The set is not the one that was read any more: read it again, then decide again."""


class NotThere(CloudError):
    """Azure knows no such thing: the set, or the machine."""


def capacity_step(code: str) -> str:
    """What a person can do about a growth that ended with this error code."""
    word = code.lower()
    if any(part in word for part in _QUOTA):
        return "ask for more quota of this machine type, or set replace_order = 'release_first' for the pool"
    if any(part in word for part in _CAPACITY):
        return "Azure has no room now: another zone or region, a reservation, or replace_order = 'release_first'"
    return "look at the set's activity log in Azure"


def translate(error: Exception, doing: str, credential: str) -> CloudError:
    """The `CloudError` for what a call of the SDK raised. `doing`: `listing the machines of gpu`."""
    from azure.core import exceptions as azure

    text = _one_line(error)
    if isinstance(error, azure.ClientAuthenticationError):
        return CloudError(
            f"Azure does not accept our credential while {doing}",
            retry=True,  # a person renews it while the action waits
            why=f"credential {credential}: {text}",
            next_step="renew the secret or assign the identity, see docs/azure.md; gpuwatch tries again by itself",
        )
    if isinstance(error, azure.HttpResponseError) and (error.status_code or 0) >= 400:
        return _of_answer(error, doing, text)
    if isinstance(error, azure.ServiceRequestError):
        return CloudError(
            f"Azure could not be reached while {doing}", retry=True, why=text, next_step="check network and proxy"
        )
    if isinstance(error, azure.ServiceResponseError):
        return CloudError(
            f"Azure's answer did not come while {doing}",
            retry=True,
            why=f"{text}; what was asked may have happened: it is looked at before it is asked again",
            next_step="nothing, unless it lasts",
        )
    return CloudError(
        f"Azure's answer made no sense while {doing}",
        retry=True,
        why=f"{type(error).__name__}: {text}",
        next_step="if it lasts, report it with this text",
    )


def code_of(error: Exception) -> str:
    """ARM's own word for it, `AllocationFailed`."""
    inner = getattr(error, "error", None)
    return str(getattr(inner, "code", "") or "")


def _of_answer(error: Exception, doing: str, text: str) -> CloudError:
    status = int(getattr(error, "status_code", 0) or 0)
    code = code_of(error)
    why = f"HTTP {status} {code}: {text}" if code else f"HTTP {status}: {text}"
    if status == 412:
        return GroupChanged(f"the set was changed by somebody while {doing}", retry=True, why=why, next_step="nothing")
    if status == 403:
        found = _ACTION.findall(text)
        if not found:
            step = "look at the locks and policies of the resource group, and at our role assignment"
            return CloudError(f"Azure forbids {doing}", why=why, next_step=step)
        return CloudError(
            f"Azure forbids {doing}: the action {found[-1]} is missing",
            retry=True,  # a person assigns the role while the action waits
            why=why,
            next_step=f"assign the role in {ROLE} to our identity on the resource group",
        )
    if status == 404:
        step = "check cloud.azure_vmss: subscription_id, resource_group and groups"
        return NotThere(f"Azure knows no such thing while {doing}", why=why, next_step=step)
    if status == 429 or status >= 500 or status == 408:
        how = "asks us to wait" if status == 429 else "has a fault of its own"
        return CloudError(f"Azure {how} while {doing}", retry=True, why=why, next_step="nothing, unless it lasts")
    word = code.lower()
    protected = word == "operationnotallowed" and "quota" not in text.lower()  # a lock on the instance, for one
    if any(part in word for part in (*_QUOTA, *_CAPACITY)) and not protected:
        return CloudError(f"Azure has no room for {doing}: {code}", why=why, next_step=capacity_step(code))
    busy = status == 409 and word != "scopelocked"
    step = "nothing, unless it lasts" if busy else "mend what it names"
    return CloudError(f"Azure refuses {doing}: {code or status}", retry=busy, why=why, next_step=step)


def _one_line(error: Exception) -> str:
    inner = getattr(error, "error", None)  # ARM's own; the client's message says it twice
    message = str(getattr(inner, "message", "") or getattr(error, "message", "") or error)
    return " ".join(message.split())[:400]
