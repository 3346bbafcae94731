"""Orders and mails in the admin pages; events bring their own."""

from __future__ import annotations

from django.contrib import admin

from shop.models import Mail, Order

admin.site.register([Order, Mail])
