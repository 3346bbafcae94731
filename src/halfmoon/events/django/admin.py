"""Admin pages of events: the outbox with a retry and an end, sent events, tokens, consumed events, and half messages that wait.

Everything is shown and nothing edited. Actions have failed events of the outbox sent again, or dropped, and sent ones sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db import connections
from django.db.models import Case, Model, Q, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from halfmoon.events.checks.tokens import PRESENT
from halfmoon.events.django.configuration import configuration
from halfmoon.events.django.databases import DjangoRows, provider
from halfmoon.events.django.models import Consumed, OutboxEvent, SentEvent, Token
from halfmoon.events.django.pending import pending
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.outbox import sent as outbox_sent
from halfmoon.events.outbox import status as outbox_status
from halfmoon.events.outbox.claims import CLAIM_SEEN_MAX_MS, clock_ms
from halfmoon.events.tables import IDENTITY

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


class _Shown(_ModelAdmin):
    """Read-only list, of the database that the settings name."""

    list_display_links = None
    list_per_page = 100
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(configuration().database)

    has_again_permission = _ModelAdmin.has_change_permission
    """Return whether a user may have events sent again: one who may change them."""
    has_drop_permission = _ModelAdmin.has_delete_permission

    def _act(self, request: HttpRequest, queryset: QuerySet[Any], act: Callable[..., int], done: str) -> None:
        """Apply an action to the selected events, and report the count."""
        chosen = list(queryset.values_list("event_id", flat=True)[: outbox_status.LIST_MAX])
        count = act(provider(configuration().database), event_ids=chosen)
        self.message_user(request, f"{count} of {len(chosen)} events {done}", messages.SUCCESS)

    @admin.display(description="written")
    def written(self, row: Any) -> Any:
        """Return the time at which the row was written."""
        return row.time


class StateFilter(admin.SimpleListFilter):
    """Filter by the state of a row of the outbox."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in outbox_status.STATES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(state=self.value()) if self.value() else queryset


def _state(now_ms: int) -> Case:
    """Return the state of a row, as `halfmoon.events.outbox.status` has it."""
    claimed = Q(claimed_until_ms__gt=now_ms, claimed_until_ms__lte=now_ms + CLAIM_SEEN_MAX_MS)
    by_state = {"failed": Q(next_ms__gte=PARKED_MS), "sending": claimed, "retrying": ~Q(error="")}
    return Case(*[When(said, then=Value(state)) for state, said in by_state.items()], default=Value("waiting"))


@admin.register(OutboxEvent)
class OutboxAdmin(_Shown):
    """Events that wait for a relay, and those that failed."""

    list_display = ("event_id", "topic", "state", "attempts", "error", "written", "claimed_by")
    list_filter = (StateFilter, "topic")
    search_fields = ("event_id",)
    actions = ("retry", "drop")
    ordering = ("seq",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, each with its state by the clock of the database."""
        now_ms = clock_ms(DjangoRows(connections[configuration().database]))
        return super().get_queryset(request).annotate(state=_state(now_ms))

    @admin.display(description="state")
    def state(self, row: Any) -> str:
        """Return the state of the row."""
        return str(row.state)

    @admin.action(description="Send the selected events again, now", permissions=["again"])
    def retry(self, request: HttpRequest, queryset: QuerySet[OutboxEvent]) -> None:
        """Have a relay send the selected events at once. Rows that a relay has in hand are left alone."""
        self._act(request, queryset, outbox_status.retry, "are sent again")

    @admin.action(description="Drop the selected events that failed: they are never sent", permissions=["drop"])
    def drop(self, request: HttpRequest, queryset: QuerySet[OutboxEvent]) -> None:
        """Remove the selected events that failed. Others are left alone."""
        self._act(request, queryset, outbox_status.drop, "were dropped")


@admin.register(SentEvent)
class SentAdmin(_Shown):
    """Events that were sent and are kept."""

    list_display = ("event_id", "topic", "key", "sent", "message_id")
    list_filter = ("topic",)
    search_fields = ("=event_id",)
    actions = ("resend",)
    ordering = ("-sent_ms", "-seq")

    @admin.display(description="key")
    def key(self, row: SentEvent) -> str:
        """Return the event's key."""
        return outbox_sent.key_of(row.event_id, bytes(row.message))

    @admin.display(description="sent")
    def sent(self, row: SentEvent) -> Any:
        """Return the time at which a broker had stored it."""
        return row.time

    @admin.action(description="Send the selected events again, under their ids", permissions=["again"])
    def resend(self, request: HttpRequest, queryset: QuerySet[SentEvent]) -> None:
        """Put the selected events into the outbox once more. Consumers with dedup ignore what they have processed."""
        self._act(request, queryset, outbox_sent.resend, "are sent again")


@admin.register(Token)
class TokenAdmin(_Shown):
    """Tokens of transactional events; and the way to the half messages that wait."""

    change_list_template = "halfmoon_events/tokens.html"
    list_display = ("id", "meaning", "written")
    list_filter = ("state",)
    search_fields = ("=id",)
    ordering = ("-created_ms",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of events, without the row that identifies the table."""
        return super().get_queryset(request).exclude(id=IDENTITY)

    @admin.display(description="state")
    def meaning(self, token: Token) -> str:
        """Return the meaning of the row."""
        return "committed" if token.state == PRESENT else "never commits"

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of the list and of the page of half messages."""
        mine = path("pending/", self.admin_site.admin_view(self.pending_view), name="halfmoon_events_pending")
        return [mine, *super().get_urls()]

    def pending_view(self, request: HttpRequest) -> HttpResponse:
        """Show the half messages of the project's publisher group that wait for a decision, as the brokers report them."""
        if not self.has_view_permission(request):
            return HttpResponse("You may not see tokens of transactional events.", status=403, content_type="text/plain")
        context = {
            **self.admin_site.each_context(request),
            "title": "Half messages without a decision",
            "pending": pending(configuration()),
        }
        return TemplateResponse(request, "halfmoon_events/pending.html", context)


@admin.register(Consumed)
class ConsumedAdmin(_Shown):
    """Events that groups have consumed, of consumers with ``dedup``."""

    list_display = ("event_id", "topic", "consumer_group", "written")
    list_filter = ("consumer_group", "topic")
    search_fields = ("=event_id",)
    ordering = ("-consumed_ms",)
