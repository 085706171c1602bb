# syntax=docker/dockerfile:1
# Makes the image of one program of this repository:
#
#   docker build --build-arg PLUGIN=fixed-resources --tag localhost/liqo/fixed-resources:0.1.0 .
#
# PLUGIN is the name of a folder in plugins/, or of one below crates/ that holds a program, such as controller-manager.

FROM rust:1.95-slim-trixie AS build
WORKDIR /liqo
COPY . .
ARG PLUGIN
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/liqo/target \
    sh deploy/build-program.sh "$PLUGIN" /program

# The libraries that programs of Rust need; not root. The program on each node changes the kernel by way of nft, and its pod runs it as root.
FROM debian:trixie-slim
ARG PLUGIN
RUN if [ "$PLUGIN" = fabric ]; then \
        apt-get update && apt-get install --yes --no-install-recommends nftables && rm -rf /var/lib/apt/lists/*; \
    fi
USER 65532:65532
COPY --from=build /program /usr/bin/program
ENTRYPOINT ["/usr/bin/program"]
