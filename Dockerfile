# The service in a container, as compose.yaml runs it. Settings are environment variables.
FROM python:3.14-slim

RUN useradd --system profiles && install -d -o profiles -m 700 /data
WORKDIR /srv/profiles
# Before the code, so that a change of the code doesn't install the packages again.
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY *.py openapi.json ./
COPY docs/API.md docs/

USER profiles
VOLUME /data
ENV DATABASE_URL=sqlite:////data/profiles.db PORT=8000
EXPOSE 8000
# http.client, because urllib would use a proxy that http_proxy names.
HEALTHCHECK --start-period=10s CMD ["python", "-c", "import http.client, os\n\
connection = http.client.HTTPConnection('127.0.0.1', int(os.environ['PORT']), timeout=5)\n\
connection.request('GET', '/live')\n\
raise SystemExit(connection.getresponse().status != 200)"]
CMD ["gunicorn", "app:create_app()"]
