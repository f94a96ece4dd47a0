package rows

// Quantile computes the figures of leader/handover.
var Quantile = quantile
