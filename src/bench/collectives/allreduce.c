/* All-reduce by the MPI at hand: arguments floats, rounds; prints seconds a round, the median of rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, words = atoi(argv[1]), rounds = atoi(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *values = malloc((size_t)words * sizeof *values);
    double *seconds = malloc((size_t)rounds * sizeof *seconds);
    for (int round = -rounds / 4; round < rounds; round++) {
        for (int i = 0; i < words; i++) values[i] = (float)(rank + i % 7);
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, values, words, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0) seconds[round] = MPI_Wtime() - begun;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
    if (rank == 0) printf("%.9f\n", seconds[rounds / 2]);
    MPI_Finalize();
    return 0;
}
