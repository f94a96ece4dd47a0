package rows

// Quantile is what the figures of leader/handover are.
var Quantile = quantile
