# admix in a container. Build: docker build -t admix .
# Run with shared memory for sample rings and snapshots (the default of 64 MiB is too little):
#   docker run --rm --shm-size=2g -v "$PWD":/work admix train --config configs/quickstart.toml
# Not built where it was written: there was no container engine. docs/operations.md

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
RUN useradd --uid 1000 --create-home admix
COPY --from=build /src/target/release/admix /usr/local/bin/admix
COPY --from=build /src/configs /usr/local/share/admix/configs
USER admix
WORKDIR /work
# Ctrl-C and `docker stop` save what was learned.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/admix"]
CMD ["--help"]
