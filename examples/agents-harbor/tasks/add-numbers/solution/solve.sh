#!/bin/bash
echo 7 > sum.txt
