"""Pure tensor mathematics: prototypes, distances, covariances, the Ky Fan norm."""
