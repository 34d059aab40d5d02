# The service in a container, as compose.yaml runs it. Settings are environment variables.
FROM python:3.14-slim

RUN useradd --system --uid 999 profiles && install -d -o profiles -m 700 /data
WORKDIR /srv/profiles
# Before the code, so that a change of the code doesn't install the packages again.
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY *.py openapi.json ./
COPY docs/API.md docs/swagger.* docs/
# A clone that was made with a strict umask has files that only root could read. COPY --chmod needs BuildKit.
RUN chmod -R a+rX .

USER 999
VOLUME /data
ENV DATABASE_URL=sqlite:////data/profiles.db PORT=8000
EXPOSE 8000
# http.client, because urllib would use a proxy that http_proxy names.
HEALTHCHECK --start-period=10s CMD ["python", "-c", "import http.client, os\n\
port = int(os.environ.get('PORT') or 8000)\n\
connection = http.client.HTTPConnection('127.0.0.1', port, timeout=5)\n\
connection.request('GET', '/live')\n\
raise SystemExit(connection.getresponse().status != 200)"]
CMD ["gunicorn", "app:create_app()"]
