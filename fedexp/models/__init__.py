"""Networks: functions of an image shape and a number of classes, cut into features and a classifier."""
