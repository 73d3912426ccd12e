#!/bin/sh
echo helo
