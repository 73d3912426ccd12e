#!/bin/bash
sed -i 's/helo/hello/' greet.sh
