"""Minimal settings. DATABASE_URL names the database of Django, which also has the queue."""

import os

import django
from graphile_worker import Retention
from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "config.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "graphile_worker.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.get("dbname"),
        "USER": _database.get("user"),
        "PASSWORD": _database.get("password"),
        "HOST": _database.get("host"),
        "PORT": _database.get("port"),
        # A thread of the worker, or of the server, keeps its connection for the next minute.
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}
GRAPHILE_WORKER = {
    "WORKER": {"concurrency": 10},
    # Ended jobs leave an outcome, which the admin shows.
    "RETENTION": Retention(),
}

# Emails are printed in the terminal of the worker.
CONSOLE = "django.core.mail.backends.console.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": CONSOLE}}
else:
    EMAIL_BACKEND = CONSOLE
