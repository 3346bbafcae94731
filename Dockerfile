# A broker with its name server: Python, Halfmoon, the libraries that they load, and nothing else. To run it, see docs/install.md.
FROM python:3.12-slim-trixie AS build
RUN apt-get update && apt-get install --yes --no-install-recommends binutils cargo gcc libc6-dev make
WORKDIR /halfmoon
COPY . .
RUN make wheel PYTHON=/usr/local/bin/python3
RUN packaging/image.sh /usr/local/bin/python3 dist /image

FROM scratch
COPY --from=build /image /
ENV PATH=/usr/local/bin PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME ["/data"]
EXPOSE 9876 10911
STOPSIGNAL SIGTERM
# Asks the name server, which knows no accounts and shares the broker's event loop, whether the broker is registered.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python3", "-c", "from halfmoon import Admin\nwith Admin(nameserver='127.0.0.1:9876') as admin: raise SystemExit(not admin.cluster().broker_addr_table)"]
# The command must end with --acl FILE or --insecure; otherwise it refuses to start.
ENTRYPOINT ["halfmoon", "serve", "--data", "/data", "--host", "0.0.0.0", "--allow-remote"]
CMD []
