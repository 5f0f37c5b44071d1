#!/usr/bin/env bash
# mpirun.sh ARGUMENT...: mpirun for any number of processes, for root as well, in a container, and
# without binding them to cores that other tests use.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl_vader_single_copy_mechanism=none
exec "${MPIRUN:-mpirun}" "$@"
