"""The addresses of the project of these tests."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from tests.events.django import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("place/<number>/", views.place),
    path("place-async/<number>/", views.place_async),
]
