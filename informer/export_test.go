package informer

// Period is the time between two comparisons.
const Period = mutationPeriod
